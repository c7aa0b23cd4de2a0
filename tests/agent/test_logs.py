"""What ranks print reaches the journal, and never blocks them."""

from __future__ import annotations

import pytest

from tests.agent.host import Job, texts, until


@pytest.mark.parametrize("shift", range(4))
def test_no_character_is_cut_at_a_read_boundary(job: Job, shift: int) -> None:
    """B01."""
    journal = job.run(f"print('x' * (16383 + {shift}) + 'é' * 40000)")
    text = "".join(texts(journal))
    assert text.count("é") == 40_000
    assert "\N{REPLACEMENT CHARACTER}" not in text


def test_both_streams_may_be_large(job: Job) -> None:
    """B04."""
    program = """
        import sys
        for n in range(8192):
            sys.stdout.write("o" * 1023 + "\\n")
            sys.stderr.write("e" * 1023 + "\\n")
    """
    journal = job.run(program)
    lines = texts(journal)
    assert lines.count("o" * 1023) == lines.count("e" * 1023) == 8192
    assert journal[-1]["state"] == "success"


def test_a_line_of_five_megabytes_does_no_harm(job: Job) -> None:
    """B05."""
    lines = texts(job.run("import sys; sys.stdout.write('a' * 5_000_000 + '\\nEND\\n')"))
    assert sum(map(len, lines[:-1])) == 5_000_000
    assert lines[-1] == "END"


@pytest.mark.parametrize("end", ["\\n", ""], ids=["line", "half a line"])
def test_a_line_is_shown_while_the_rank_sleeps(job: Job, end: str) -> None:
    """B07."""
    job.prepare()
    job.start(f"import time; print('start', end='{end}'); time.sleep(600)")
    job.wait_for("start")


def test_what_was_printed_before_a_kill_is_not_lost(job: Job) -> None:
    """B07."""
    journal = job.run("import os; os.write(1, b'half'); os.kill(os.getpid(), 9)")
    assert texts(journal) == ["half"]


def test_binary_output_does_no_harm(job: Job) -> None:
    program = "import os; os.write(1, bytes(range(256)) * 64 + b'\\nend\\n')"
    assert texts(job.run(program))[-1] == "end"


def test_the_journal_has_a_limit_and_the_file_does_not(job: Job) -> None:
    program = """
        import os
        block = (b"x" * 1023 + b"\\n") * 1024
        for _ in range(70):
            os.write(1, block)
    """
    journal = job.run(program)
    notes = [each["m"] for each in journal if each["k"] == "note"]
    shown = sum(len(line) + 1 for line in texts(journal))
    assert 60 << 20 < shown <= 64 << 20
    assert notes[0] == f"too much log: from here on it is only in {job.path}/logs"
    assert notes[1] == f"{(70 << 20) - shown} bytes of log are only in {job.path}/logs"
    assert (job.path / "logs/rank-0.log").stat().st_size == 70 << 20
    assert journal[-1]["state"] == "success"


def test_every_rank_has_a_log_of_its_own(job: Job) -> None:
    journal = job.run("print('zero')", "print('one')")
    assert (texts(journal, 0), texts(journal, 1)) == (["zero"], ["one"])


def test_the_end_of_the_log_comes_with_the_exit(job: Job) -> None:
    program = "for n in range(100): print('line', n)\nraise ValueError('bad')"
    exit_ = next(each for each in job.run(program) if each["k"] == "exit")
    assert len(exit_["tail"]) == 50
    assert exit_["tail"][-1] == "ValueError: bad"


def test_the_socket_answers_while_logs_flood(job: Job) -> None:
    job.prepare()
    job.start("while True: print('a short line of a rank that prints without end')")
    until(lambda: job.path.joinpath("journal.jsonl").stat().st_size > 1 << 20)
    assert job.start()["already"]
    assert job.call("stop", reason="enough", owner=None, wait=30)["state"] == "ended"
