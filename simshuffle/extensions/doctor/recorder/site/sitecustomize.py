"""Begin to watch where this folder is on PYTHONPATH, and run the next sitecustomize,
too.
"""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow
_NAME = "simshuffle_recorder"


def _begin() -> None:
    """Import the recorder by its path, because simshuffle need not be installed, and
    begin, if the environment names a folder for the record.
    """
    package = os.path.dirname(_HERE)  # noqa: PTH120
    path = f"{package}/__init__.py"
    spec = importlib.util.spec_from_file_location(
        _NAME, path, submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        return
    module = sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.begin()


def _run_next_sitecustomize() -> None:
    """Run the sitecustomize that Python would find without this folder, if there is
    one; it takes the place of this module in `sys.modules`.
    """
    other_paths = [path for path in sys.path if os.path.abspath(path) != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec(__name__, other_paths)
    if spec is not None and spec.loader is not None:
        module = sys.modules[__name__] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


try:
    _begin()
except Exception as error:  # noqa: BLE001 - the script must run all the same
    os.write(2, f"simshuffle: nothing is recorded: {error!r}\n".encode())
_run_next_sitecustomize()
