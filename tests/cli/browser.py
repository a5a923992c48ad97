"""Pages in a real browser: Debian's chromium, without a window."""

import contextlib
import shutil

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

INSTALL = "these tests need a browser: apt-get install chromium chromium-driver (scripts/setup.sh does it)"


def tool(name):
    path = shutil.which(name)
    assert path, f"{name} is not installed; {INSTALL}"
    return path


@contextlib.contextmanager
def browser(profile, width=1600, height=1000):
    """A WebDriver. `profile`: a folder for the browser's files."""
    options = Options()
    options.binary_location = tool("chromium")
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={profile}", f"--window-size={width},{height}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(tool("chromedriver")))
    try:
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(60)
        yield driver
    finally:
        driver.quit()


def resize(driver, width, height=1000):
    """Makes the viewport exactly so wide; a window cannot be narrower than 500."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def painted(driver):
    """Waits until the browser has drawn twice, so that what a change has caused is on the page."""
    driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")


def complaints(driver):
    """The browser's log since the last call: script errors, and loads that were refused."""
    return [entry["message"] for entry in driver.get_log("browser")]
