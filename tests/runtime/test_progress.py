"""What long calls say while they run: in a terminal, in a notebook, and elsewhere."""

import os
import pty
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import mvue
from helpers.notebook import enter_notebook
from helpers.plain import plain_fit
from mvue._runtime.progress import Stage, progress_for


def names(lines):
    return list(dict.fromkeys(line.split("  ")[0] for line in lines if line))


def test_nothing_is_shown_where_nobody_looks(capsys):
    with progress_for(None).stage("training", 10) as advance:
        advance(5, "half")
    assert capsys.readouterr() == ("", "")


def test_nothing_is_shown_to_who_wants_nothing(monkeypatch):
    shell = enter_notebook(monkeypatch)
    with progress_for(False).stage("training", 10) as advance:
        advance(5)
    assert not shell.shown


def test_lines_where_they_are_asked_for(capsys):
    progress = progress_for(True)
    with progress.stage("surveying"):
        pass
    with progress.stage("training", 3_000) as advance:
        advance(1_500)
        advance(3_000, "loss 2")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["surveying", "training", "training  3,000/3,000  loss 2  0:00"]


def test_one_display_in_a_notebook_keeps_what_was_counted(monkeypatch, capsys):
    shell = enter_notebook(monkeypatch)
    progress = progress_for(None)
    with progress.stage("surveying <all>"):
        assert "&lt;all&gt; …" in shell.shown[-1][2]["text/html"]
    with progress.stage("training", 10) as advance:
        advance(10, "done")
        advance(10, "done")
    with progress.stage("tidying"):
        assert shell.texts[-1].splitlines()[1].startswith("tidying")
    assert shell.texts[-1] == "training  10/10  done  0:00"
    assert '<progress value="10" max="10">' in shell.shown[-1][2]["text/html"]
    assert len({display for display, _, _ in shell.shown}) == 1
    assert [update for _, update, _ in shell.shown] == [False] + [True] * (len(shell.shown) - 1)
    assert capsys.readouterr() == ("", "")


def test_updates_of_a_notebook_are_few(monkeypatch):
    shell = enter_notebook(monkeypatch)
    with progress_for(None).stage("simulating", 10_000) as advance:
        for done in range(10_000):
            advance(done)
    assert len(shell.shown) < 20


def test_a_stage_that_fails_ends(monkeypatch):
    shell = enter_notebook(monkeypatch)
    with pytest.raises(KeyboardInterrupt), progress_for(None).stage("surveying"):
        raise KeyboardInterrupt
    assert shell.texts[-1] == ""


def test_time_left_does_not_count_what_comes_before_the_first_step(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stage = Stage("training", 100, 20)  # 20 were done before
    now[0] = 60.0
    assert stage.timed == "1:00"
    stage.advance(40, "")
    now[0] = 80.0
    stage.advance(50, "")
    assert stage.timed == "1:40 left"
    stage.ended = 3700.0
    assert stage.timed == "1:01:40"


LIVE = """
import sys, time
from mvue._runtime.progress import progress_for

progress = progress_for(None)
with progress.stage("surveying"):
    time.sleep(0.3)
    print("a result")
with progress.stage("training", 10) as advance:
    for i in range(11):
        advance(i, "loss 1")
        time.sleep(0.02)
"""


def test_a_live_line_in_a_terminal_leaves_standard_output_alone():
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    child = subprocess.run(
        [sys.executable, "-c", LIVE], stdout=subprocess.PIPE, stderr=theirs, env=env, check=True
    )
    os.close(theirs)
    shown = os.read(ours, 2**16).decode()
    os.close(ours)
    assert child.stdout == b"a result\n"
    assert "surveying" in shown
    assert "10/10 loss 1 0:00" in shown.splitlines()[-2]


def test_fit_says_what_it_is_doing(line, key, monkeypatch):
    shell = enter_notebook(monkeypatch)
    plain_fit(line, key=key, steps=20)
    assert names(shell.texts) == ["compiling", "training"]
    assert shell.texts[-1].startswith("training  20/20  loss")
    assert len(shell.texts[-1].splitlines()) == 1


def test_fit_surveys_first(line, key, monkeypatch):
    def refuse(*_, **__):
        raise KeyboardInterrupt

    shell = enter_notebook(monkeypatch)
    monkeypatch.setattr("mvue._default.decisions.survey", refuse)
    with pytest.raises(KeyboardInterrupt):
        mvue.fit(line, key=key)
    assert names(shell.texts) == ["surveying"]


def test_others_say_what_they_are_doing(line, key, monkeypatch):
    shell = enter_notebook(monkeypatch)
    mvue.assess(lambda x: x, line, repeats=20, key=key)
    assert shell.texts[-1].startswith("assessing  20/20")
    x = np.zeros((100, 2), np.float32)
    mvue.average(lambda x: x, x, chunk_size=10)
    assert shell.texts[-1].startswith("averaging  100/100")
    mvue.simulate(lambda y, rng: y + rng.normal(), dist.Uniform(), units=7)
    assert shell.texts[-1].startswith("simulating  7/7")
    rows = mvue.Repeats.from_rows(np.random.default_rng(0).normal(size=(40, 2)), np.arange(40.0))
    before = len(shell.shown)
    mvue.fit_data(rows, loss=mvue.emmse(), key=key, steps=2)
    assert "preparing the data" in names(shell.texts[before:])


def test_monte_carlo_bounds_say_how_far_they_are(key, monkeypatch):
    shell = enter_notebook(monkeypatch)
    problem = mvue.Problem.from_likelihood(dist.Uniform(1.0, 2.0), lambda y: dist.Normal(y, 1.0))
    mvue.crb(problem, 1.5, method="monte carlo", key=key, samples=2**15)
    assert shell.texts[-1].startswith("simulating scores  32,768/32,768  relative error 0.0")


def test_compiled_averages_show_nothing():
    with pytest.raises(ValueError, match="progress cannot be shown in a compiled function"):
        jax.jit(lambda x: mvue.average(lambda x: x, x, progress=True).estimate)(jnp.zeros((3, 1)))
