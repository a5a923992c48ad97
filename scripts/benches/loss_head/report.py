"""Reports of the benchmark and of the accuracy study."""


def first_line(error):
    """An exception as one short line."""
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:160]}"


def pyplot():
    """matplotlib's, without a display; None, and a line that says so, where it is not installed."""
    try:
        import matplotlib
    except ImportError:
        print("no PNG: matplotlib is not installed here; --plot FILE.json makes it elsewhere", flush=True)
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot as module

    return module
