"""Nothing in the library runs, or unpickles, what it reads: looked for in the text of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from paths import ROOT

SOURCE = ROOT / "src"

#: what would run a text or bytes as code, and the modules that would
_CALLS = {"eval", "exec", "compile", "__import__"}
_MODULES = {
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
    "yaml",
    "runpy",
    "code",
    "codeop",
    "imp",
    "dbm",
}
_ATTRIBUTES = {
    ("os", "system"), ("os", "popen"), ("os", "execv"), ("os", "execvp"), ("os", "execve"), ("os", "spawnv"),
    ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"), ("yaml", "load"),
    ("np", "fromstring"), ("np", "genfromtxt"), ("np", "loadtxt"), ("importlib", "reload"),
}  # fmt: skip

#: the exceptions, each with what makes it harmless
ALLOWED = {
    (
        "jitdnn/ops/worker.py",
        "pickle",
    ): "between a process and the worker that it started, over their own pipes",
    (
        "jitdnn/caffe/decode_processes.py",
        "pickle",
    ): "between a process and the one that it started, over memory without a name that these two have",
    (
        "jitdnn/ops/worker.py",
        "-c",
    ): "a program of constants: this interpreter's path, the name of one of our modules",
    **{
        (
            f"jitdnn/frameworks/torch/{module}.py",
            what,
        ): "calls of a captured graph's operators: names of ours and "
        "numbers of constants, no text of anybody's"
        for module, what in (
            ("memory_graph", "exec"),
            ("memory_graph", "compile"),
            ("program", "eval"),
            ("program", "compile"),
            ("writer", "exec"),
            ("writer", "compile"),
        )
    },
    **{
        (
            "jitdnn/frameworks/torch/calls.py",
            what,
        ): "assignments and a call by names of ours, counted by the gradients"
        for what in ("exec", "compile")
    },
    **{
        (
            "jitdnn/frameworks/torch/launch.py",
            what,
        ): "assignments and a call by names of ours, counted by a problem's operands"
        for what in ("exec", "compile")
    },
    ("jitdnn/__init__.py", "import_module"): "public names of the package, from a table in the same file",
    ("jitdnn/torch.py", "import_module"): "two modules of ours, from a table in the same file",
    ("jitdnn/cli/studio.py", "import_module"): "packages of an extra, from a table in the same file",
    (
        "jitdnn/planner/gpu_kernel_records.py",
        "import_module",
    ): "two modules of ours, from a table in the same file",
    ("jitdnn/targets/__init__.py", "import_module"): "modules of that package, by the names in BUILT_IN",
    (
        "jitdnn/studio/web/app.py",
        "import_module",
    ): "modules of its package pages, by the names of their files",
    ("jitdnn/studio/work/local.py", "-c"): "a program that is a constant, which asks for the names of GPUs",
    (
        "jitdnn/studio/work/inspector.py",
        "pickle",
    ): "between the server and the processes that it started, over their own pipes, as multiprocessing does",
    ("jitdnn/targets/target.py", "import_module"): "modules that the value of a target names",
}


def _found(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Everything in a module that could run what it is given, as (what, line)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            for name in names:
                if name.split(".")[0] in _MODULES | {"pickle", "_pickle"}:
                    yield name.split(".")[0], node.lineno
        elif isinstance(node, ast.Attribute) and (_name(node.value), node.attr) in _ATTRIBUTES:
            yield f"{_name(node.value)}.{node.attr}", node.lineno
        if isinstance(node, ast.Call):
            yield from _call(node)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _call(node: ast.Call) -> Iterator[tuple[str, int]]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if isinstance(node.func, ast.Name) and name in _CALLS:
        yield name, node.lineno
    is_numpy = isinstance(node.func, ast.Attribute) and _name(node.func.value) in ("np", "numpy")
    if is_numpy and name == "load":
        given = keywords.get("allow_pickle")
        if not (isinstance(given, ast.Constant) and given.value is False):
            yield "np.load", node.lineno
    if name == "import_module" and not (node.args and isinstance(node.args[0], ast.Constant)):
        yield "import_module", node.lineno
    shell = keywords.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield "shell=True", node.lineno
    starts = name in ("Popen", "run", "check_output", "check_call", "call") and bool(node.args)
    if starts and any(
        isinstance(part, ast.Constant) and part.value == "-c" for part in ast.walk(node.args[0])
    ):
        yield "-c", node.lineno


def test_no_module_runs_what_it_reads() -> None:
    used: set[tuple[str, str]] = set()
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 200
    for file in files:
        place = file.relative_to(SOURCE).as_posix()
        for what, line in _found(ast.parse(file.read_text(encoding="utf-8"))):
            assert (place, what) in ALLOWED, f"{place}, line {line}: {what}"
            used.add((place, what))
    assert used == set(ALLOWED), "an exception that nobody needs any more"


@pytest.mark.parametrize(
    "text",
    [
        "eval('1')", "exec(x)", "compile(a, b, 'exec')", "__import__(name)", "import pickle", "from pickle import load",
        "import marshal", "import shelve", "import yaml", "np.load(path)", "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)", "os.system('ls')", "subprocess.run('ls', shell=True)",
        "subprocess.run(x, shell=flag)", "importlib.import_module(name)", "import_module(f'a.{b}')",
        "subprocess.run([sys.executable, '-c', text])", "os.popen(x)",
    ],
)  # fmt: skip
def test_the_search_finds(text: str) -> None:
    assert list(_found(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "np.load(path, allow_pickle=False)",
        "re.compile(x)",
        "import_module('json')",
        "subprocess.run(['ls'])",
        "self.eval(x)",
    ],
)
def test_the_search_leaves_alone(text: str) -> None:
    assert not list(_found(ast.parse(text)))
