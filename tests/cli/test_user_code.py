"""Whatever code raises that is not bnuq's own, it is exit code 2 and one message with the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnuq.errors import RequestError
from bnuq.user_code import user_code

RAISED = {
    "SystemExit(0)": "sys.exit(0)",
    "SystemExit(1)": "sys.exit(1)",
    "SystemExit(None)": "sys.exit()",
    "SystemExit(text)": "sys.exit('enough')",
    "GeneratorExit": "raise GeneratorExit",
    "StopIteration": "raise StopIteration",
    "an exception that cannot be printed": "raise Unprintable",
    "a RuntimeError that cannot be printed": "raise UnprintableRuntimeError",
    "BaseException": "raise BaseException('odd')",
}
SOME = ("sys.exit(0)", "raise StopIteration", "raise Unprintable")  # where all go through the same wall
HEAD = """import sys

class Unprintable(Exception):
    def __str__(self): raise ValueError('no words')

class UnprintableRuntimeError(RuntimeError):
    def __str__(self): sys.exit(0)

"""


def net_whose_forward(body: str) -> str:
    return (
        HEAD
        + (Path(__file__).parents[1] / "builders" / "small_run.py").read_text().split("'''")[1]
        + "\n_net = net\n\nclass Odd(nn.Sequential):\n    def forward(self, x):\n"
        + f"        {body}  # here\n        return super().forward(x)\n\n"
        + "def net():\n    return Odd(*_net())\n"
    )


def line_of(source: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize(
    ("command", "body"), [*(("evaluate", body) for body in RAISED.values()), *(("inspect", body) for body in SOME)]
)
def test_whatever_a_forward_raises_is_one_message_with_its_line(small, cli, command, body):
    source = net_whose_forward(body)
    (small / "net.py").write_text(source)
    done = cli(command, "run.toml", *(("-T", "2", "--limit", "20") if command == "evaluate" else ()))
    assert (done.code, done.out) == (2, "")
    assert "the network's forward fails on inputs of shape (" in done.message
    assert f"at {small / 'net.py'}, line {line_of(source)}" in done.message
    assert ("ends the process (sys.exit)" in done.message) == body.startswith("sys.exit")
    assert ("does not accept examples" in done.message) == (body == "raise StopIteration")
    assert ("not an operation in it: fix it there" in done.message) == ("exit" not in body and "Stop" not in body)
    assert not list(small.glob("*.h5"))


def test_what_a_generator_made_another_error_is_named_as_it_was_raised():
    named = r"trying it failed with StopIteration at .*test_user_code\.py, line \d+"
    with pytest.raises(RequestError, match=named), user_code("trying it failed with", advice="Mend it."):
        sum(next(iter(())) for _ in range(2))


PLACES = {
    "while it is imported": ("BODY  # here\ndef points(): ...\n", "loading it failed with"),
    "in the factory": ("def points():\n    BODY  # here\n", "calling it failed with"),
    "in Dataset.__getitem__": (
        "class D:\n    def __len__(self): return 3\n    def __getitem__(self, i):\n        BODY  # here\n"
        "def points(): return D()\n",
        "reading item 0 failed with",
    ),
    "in an iterable": (
        "class D:\n    def __iter__(self): return self\n    def __next__(self):\n        BODY  # here\n"
        "def points(): return D()\n",
        "reading its examples failed with",
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("body", SOME)
def test_whatever_a_data_factory_raises_is_one_message_with_its_line(small, cli, place, body):
    code, doing = PLACES[place]
    if (place, body) == ("in an iterable", RAISED["StopIteration"]):
        pytest.skip("that is how an iterable ends")
    source = HEAD + code.replace("BODY", body)
    (small / "points.py").write_text(source)
    done = cli("evaluate", "run.toml", "--test", "points.py:points")
    assert (done.code, done.out) == (2, "")
    assert f"points.py:points: {doing}" in done.message
    assert f"at {small / 'points.py'}, line {line_of(source)}" in done.message


@pytest.mark.parametrize("body", SOME)
def test_whatever_an_architecture_raises_is_one_message_with_its_line(small, cli, body):
    source = HEAD + f"def net():\n    {body}  # here\n"
    (small / "net.py").write_text(source)
    done = cli("evaluate", "run.toml")
    assert (done.code, done.out) == (2, "")
    assert "net.py:net: calling it failed with" in done.message
    assert f"at {small / 'net.py'}, line {line_of(source)}" in done.message


@pytest.mark.parametrize("method", ["eval", "state_dict", "_apply", "named_modules", "load_state_dict"])
@pytest.mark.parametrize("body", ["sys.exit(0)", "raise Unprintable"])
def test_what_other_methods_of_a_network_raise_is_one_message_with_their_line(small, cli, method, body):
    source = net_whose_forward("pass").replace("# here", "")
    source = source.replace(
        "\ndef net():\n    return Odd",
        f"    def {method}(self, *_, **__):\n        {body}  # here\n\ndef net():\n    return Odd",
    )
    (small / "net.py").write_text(source)
    done = cli("evaluate", "run.toml")
    assert (done.code, done.out) == (2, "")
    assert f"at {small / 'net.py'}, line {line_of(source)}" in done.message


def test_an_exhausted_memory_passes_through_the_wall_and_halves_the_chunk(small, cli):
    (small / "net.py").write_text(net_whose_forward("if len(x) > 50: raise MemoryError"))  # of 60 test points
    done = cli("evaluate", "run.toml", "--method", "deterministic")
    assert done.code == 0, done.err
