"""The package as a whole: what it exports, what importing it costs, which way its imports point."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tfdist
from tfdist import versions

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# From the bottom to the top. A module may import from its own layer and those before it. The longest prefix counts.
LAYERS = [
    ["tfdist.errors", "tfdist.tf_config", "tfdist.versions", "tfdist.observe"],
    ["tfdist.membership", "tfdist.data", "tfdist.compression", "tfdist.preemption"],
    ["tfdist.runtime", "tfdist.keras_internals", "tfdist.keras_hooks", "tfdist.collectives"],
    ["tfdist.strategies", "tfdist.checkpoint"],
    ["tfdist.callbacks"],
    ["tfdist.launch", "tfdist.testing"],
    ["tfdist", "tfdist.__main__"],  # the lazy names
]
WITHOUT_TENSORFLOW = ["tfdist.errors", "tfdist.tf_config", "tfdist.versions", "tfdist.observe", "tfdist.membership",
                      "tfdist.launch", "tfdist.testing", "tfdist.preemption", "tfdist.data.plan",
                      "tfdist.data.shares",
                      # Where checkpoints are stored, and what is decided about them.
                      *(f"tfdist.checkpoint.{name}" for name in (
                          "access", "arrays", "claim", "files", "interval", "manifest", "parts", "retention", "store",
                      ))]  # fmt: skip


def modules() -> dict[str, Path]:
    """Module name -> file, of everything that is installed."""
    found = {}
    for directory, package in ((ROOT / "tfdist", "tfdist"), (ROOT / "callbacks", "tfdist.callbacks")):
        for path in directory.rglob("*.py"):
            parts = [package, *path.relative_to(directory).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(name: str) -> set[str]:
    """The modules that a module imports, but not for types only. "from tfdist import errors" is tfdist.errors."""
    tree = ast.parse(MODULES[name].read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}, line {node.lineno}: a relative import; write it in full"
            for alias in node.names:
                inner_module = f"{node.module}.{alias.name}"
                found.add(inner_module if inner_module in MODULES else str(node.module))
    return found - {"__future__"}


def layer_of(name: str) -> int:
    while name:
        for number, prefixes in enumerate(LAYERS):
            if name in prefixes:
                return number
        name = name.rpartition(".")[0]
    raise AssertionError("no module of tfdist")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_down(name):
    for imported in imports_of(name):
        if imported.split(".")[0] == "tfdist" and imported != "tfdist":
            assert layer_of(imported) <= layer_of(name), f"{name} imports {imported}, which lies above it"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_private_tensorflow_and_keras_are_touched_in_one_file_each(name):
    for imported in imports_of(name):
        if re.match(r"tensorflow\.(python|core|compiler)\b", imported):
            assert name == "tfdist.runtime", f"{name} imports {imported}"
        if re.match(r"keras\.src\b", imported):
            assert name == "tfdist.keras_internals", f"{name} imports {imported}"


def run_python(code: str, *, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_nothing_that_is_light_imports_tensorflow():
    light = [
        name
        for name in sorted(MODULES)
        if any(name == prefix or name.startswith(prefix + ".") for prefix in WITHOUT_TENSORFLOW)
        and not name.endswith("__main__")
    ]
    light += ["tfdist", "tfdist.callbacks", "tfdist.checkpoint", "tfdist.data"]
    code = f"import importlib, sys\nfor name in {light}: importlib.import_module(name)\n"
    done = run_python(
        code + "print([m for m in ('tensorflow', 'keras', 'orbax', 'jax') if m in sys.modules])", cwd=ROOT
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_all_public_names_exist_and_load():
    done = run_python(
        "import tfdist, tfdist.callbacks\n"
        "for module in (tfdist, tfdist.callbacks):\n"
        "    for name in module.__all__: getattr(module, name)\n"
        "    assert set(module.__all__) <= set(dir(module))",
        cwd=ROOT,
        TF_CPP_MIN_LOG_LEVEL="3",
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = tfdist.nonsense


@pytest.mark.parametrize("cwd", [ROOT, Path("/")], ids=["source root", "elsewhere"])
def test_the_callbacks_are_found_in_the_source_tree(cwd):
    done = run_python("import tfdist.callbacks; print(tfdist.callbacks.__name__)", cwd=cwd, PYTHONPATH=str(ROOT))
    assert done.stdout == "tfdist.callbacks\n", done.stderr


def test_a_bare_import_of_callbacks_says_what_to_write():
    done = run_python("import callbacks", cwd=ROOT)
    assert "write 'import tfdist.callbacks'" in done.stderr


def test_pyproject_lists_all_packages():
    packages = {name if path.name == "__init__.py" else name.rpartition(".")[0] for name, path in MODULES.items()}
    assert packages == set(PYPROJECT["tool"]["setuptools"]["packages"]), (
        "edit tool.setuptools.packages in pyproject.toml"
    )


def test_each_package_says_what_it_is():
    for name, path in MODULES.items():
        text = path.read_text()
        assert not text or ast.get_docstring(ast.parse(text)), f"{name} has no docstring"


def test_the_tested_versions_are_the_same_in_pyproject():
    extras = PYPROJECT["project"]["optional-dependencies"]
    keras = f"keras{versions.TESTED_KERAS}"
    assert extras["cpu"] == [f"tensorflow-cpu{versions.TESTED_TENSORFLOW}", keras]
    assert extras["gpu"] == [f"tensorflow[and-cuda]{versions.TESTED_TENSORFLOW}", keras]


@pytest.mark.parametrize(
    ("version", "verdict"),
    [
        ("2.21.0", "tested"),
        ("2.21.0-rc1", "tested"),
        ("2.20.3", "too old"),
        ("1.99", "too old"),
        ("2.22.0", "untested"),
        ("3.0", "untested"),
        ("nightly", "untested"),
    ],
)
def test_versions_are_judged(version, verdict):
    found, reason = versions.judge_version("tensorflow", version, ">=2.21,<2.22")
    assert found == verdict
    assert version in reason


def test_an_old_version_is_refused_and_a_new_one_is_warned_about():
    with pytest.raises(ImportError, match=r"keras 3\.9\.0 is older than >=3\.15,<3\.16; install one"):
        versions.check_versions("2.21.0", "3.9.0")
    with pytest.warns(UserWarning, match=r"tensorflow 2\.30\.0 is newer"):
        versions.check_versions("2.30.0", "3.15.1")
