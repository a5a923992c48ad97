def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "alone: asks how long something takes; scripts/test.sh runs it after the others, with nothing beside it",
    )
