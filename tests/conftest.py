"""Shared by all tests. Its being here puts this folder on the path, so that any test can `from helpers import ...`."""
