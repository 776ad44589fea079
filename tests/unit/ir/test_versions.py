"""Versions of packages, also of a package in a plain folder."""

from importlib.metadata import version

from shardwright.ir.versions import UNKNOWN, version_of


def test_an_installed_package_has_its_version():
    assert version_of("xdsl") == version("xdsl")


def test_a_package_without_metadata_has_an_unknown_version():
    assert version_of("a-folder-that-nobody-installed") == UNKNOWN
