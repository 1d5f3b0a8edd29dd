"""Importing tfdist.data is quick."""

import subprocess
import sys

import tfdist.data


def test_importing_the_package_does_not_import_tensorflow():
    program = (
        "import sys, tfdist.data, tfdist.data.reader, tfdist.data.epochs\n"
        "assert not any(name.partition('.')[0] in ('tensorflow', 'keras') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_every_public_name_is_there():
    assert all(hasattr(tfdist.data, name) for name in tfdist.data.__all__)
    assert set(tfdist.data.__all__) <= set(dir(tfdist.data))
