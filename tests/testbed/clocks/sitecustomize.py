"""On PYTHONPATH, gives each service a clock of its own: it begins anew, in the same process, under libfaketime."""

import os
import sys

_folder, _library = os.environ.get("WEFT_TEST_CLOCKS"), os.environ.get("WEFT_TEST_CLOCKS_LIBRARY")
_flag, _module = (*sys.orig_argv[1:3], "", "")[:2]
if _folder and _library and _flag == "-m" and _module.startswith("services.") and "LD_PRELOAD" not in os.environ:
    _file = f"{_folder}/{_module.removeprefix('services.')}"
    if os.access(_file, os.R_OK):
        os.environ |= {
            "LD_PRELOAD": _library,
            "FAKETIME_TIMESTAMP_FILE": _file,
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            # Else threads that wait with a limit (gRPC's) wake all the time.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - the same program with the same words
