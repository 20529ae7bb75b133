"""One style for all figures: colour-blind safe, readable in print, labelled axes."""

from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe & Ito
_STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.alpha": 0.3,
    "svg.fonttype": "none",
}


def figure(title: str, x: str, y: str, width: float = 6.0, height: float = 4.0) -> Any:
    """Axes of a new figure with title and labels, in the house style."""
    return panels((title, x, y), width=width, height=height)[0]


def panels(
    *labels: tuple[str, str, str], width: float = 5.0, height: float = 4.0, columns: int | None = None
) -> list[Any]:
    """Axes in one new figure, each `width` by `height`, for each (title, x label, y label), in one row or `columns`."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("figures need matplotlib; install tacit[report]") from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]  # its keys are literals there
        across = len(labels) if columns is None else columns
        down = -(-len(labels) // across)
        canvas = FigureCanvasAgg(Figure(figsize=(width * across, height * down)))
        found = [canvas.figure.add_subplot(down, across, i + 1) for i in range(len(labels))]
    for axes, (title, x, y) in zip(found, labels, strict=True):
        axes.set_prop_cycle(color=COLOURS)
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    return found


def apart(
    *labels: tuple[str, str, str], width: float = 5.0, height: float = 4.0, columns: int | None = None
) -> list[Any]:
    """Like `panels`, but each in its own figure, so that a page can place them beside or below each other."""
    del columns
    return [axes for label in labels for axes in panels(label, width=width, height=height)]


def logarithmic(axes: Any, which: str = "x") -> None:
    """Make the axis called `which` logarithmic, with plain numbers at 1, 2, 5 and their tenfolds."""
    from matplotlib.ticker import LogLocator, NullLocator

    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda number, _: f"{number:g}")
    axis.set_minor_locator(NullLocator())


def save(axes: Any, path: Path) -> None:
    """Write the figure; the file's ending says how (png, svg or pdf)."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"plot={path}; expected a file that ends in .png, .svg or .pdf")
    try:
        axes.figure.savefig(path, dpi=150)
    except OSError as error:
        raise ValueError(f"plot={path}: {error.strerror}; expected a folder that can be written to") from None
