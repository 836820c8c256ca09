"""Rules of this code base that no linter knows: sizes, nesting, and randomness that is always an argument."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE, MAX_FUNCTION = 600, 80  # smoke alarms: what goes off is split by subject, not by size
# Calls that draw from a global generator unless they are handed one.
DRAWS = {"bernoulli", "multinomial", "normal", "poisson", "rand", "randint", "randn", "randperm"}
DRAWS_IN_PLACE = {"bernoulli_", "exponential_", "normal_", "random_", "uniform_"}
RESTORES = {"isolation.py"}  # reads the global generators to set them back after a plug-in
ALWAYS_GLOBAL = {"rand_like", "randn_like", "randint_like", "manual_seed_all", "set_rng_state"}


def long_functions(tree: ast.AST) -> list[str]:
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    return [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > MAX_FUNCTION]


COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def much_nested(tree: ast.AST) -> Iterator[str]:
    """Functions with more than one comprehension that holds another."""
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        every = [n for n in ast.walk(function) if isinstance(n, COMPREHENSION)]
        outer = [n for n in every if any(isinstance(x, COMPREHENSION) and x is not n for x in ast.walk(n))]
        if len(outer) > 1:
            yield function.name


def draws_globally(call: ast.Call) -> bool:
    """Whether ``call`` takes its numbers from torch's or numpy's global generator."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner, name = ast.unparse(call.func.value), call.func.attr
    handed = any(k.arg == "generator" for k in call.keywords)
    if name in ALWAYS_GLOBAL or (owner == "torch" and name in {"manual_seed", "seed"}):
        return True
    if owner in {"torch", "nn.init", "torch.nn.init"} and name in DRAWS | DRAWS_IN_PLACE:
        return not handed
    if owner in {"np.random", "numpy.random"}:
        return name not in {"default_rng", "Generator"} or not call.args
    return name in DRAWS_IN_PLACE and not handed


def global_draws(tree: ast.AST) -> Iterator[str]:
    """Where they are. A layer may draw its initial values, as torch's do: `models.build` forks around it."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    initial = {a for c in calls if ast.unparse(c.func) == "nn.Parameter" for a in c.args}
    for node in calls:
        if node not in initial and draws_globally(node):
            yield f"line {node.lineno}: {ast.unparse(node.func)}"


def broken_rules(path: Path) -> Iterator[str]:
    """The rules that a file breaks, in words."""
    text = path.read_text()
    tree = ast.parse(text)
    if (lines := len(text.splitlines())) > MAX_FILE:
        yield f"{lines} lines"
    yield from (f"function {name} is too long" for name in long_functions(tree))
    yield from (f"function {name} nests comprehensions twice" for name in much_nested(tree))
    if "fork_rng" not in text and path.name not in RESTORES:  # draws in fork_rng do not leave it
        yield from global_draws(tree)


def test_every_file_keeps_the_rules():
    broken = [f"{path.relative_to(SOURCE)}: {rule}" for path in FILES for rule in broken_rules(path)]
    assert broken == []


@pytest.mark.parametrize(
    "code",
    ["torch.manual_seed(1)", "torch.randn(3)", "x.normal_()", "np.random.rand(3)", "torch.randn_like(x)"],
)
def test_a_global_draw_is_noticed(code):
    assert list(global_draws(ast.parse(code))) != []


@pytest.mark.parametrize(
    "code",
    [
        "torch.randn(3, generator=g)",
        "x.normal_(generator=g)",
        "np.random.default_rng(1)",
        "rng.normal(3)",
        "nn.Parameter(torch.randn(3))",
    ],
)
def test_a_draw_from_an_argument_is_fine(code):
    assert list(global_draws(ast.parse(code))) == []


def test_a_second_nested_comprehension_is_noticed():
    once = "def once():\n    return [[y for y in x] for x in z]"
    twice = once.replace("once", "twice") + ", {len([y for y in x]) for x in z}"
    assert list(much_nested(ast.parse(f"{once}\n{twice}"))) == ["twice"]


def test_a_long_function_is_noticed():
    assert long_functions(ast.parse("def f():\n" + "    x = 1\n" * MAX_FUNCTION)) == ["f"]
