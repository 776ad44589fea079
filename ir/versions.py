"""The versions of installed packages."""

from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "unknown"


def version_of(package: str) -> str:
    """Return the version of a package, or `UNKNOWN` if the package is imported from a plain folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN
