"""Everything that holds on a CPU, checked on an accelerator: ``make gpu-check``.

    python -m benchmarks.gpu_check --to benchmarks/results-gpu.md
    python -m benchmarks.gpu_check --device cpu --quick
    python -m benchmarks.gpu_check --only exactness_gpt2,noise

Each line of the table is a process of its own, which has a limit in seconds and fails by itself.
Lines that time nothing run side by side, the others alone after them. Nothing is fetched: models
have random weights, runs train the embedded model on the embedded records. The table is written
after each line, the numbers beside it as a line of JSON, and what a failing line printed at the end
of a log, so that a check that is killed leaves what it has.
"""

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

# asks the driver's library: CUDA itself would not survive the fork of a line's process
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: E402

from benchmarks.gpu_exactness import EXACTNESS  # noqa: E402
from benchmarks.gpu_lines import Given, Line, Verdict  # noqa: E402
from benchmarks.gpu_runs import RUNS  # noqa: E402
from benchmarks.gpu_speed import SPEED, machine  # noqa: E402
from benchmarks.tables import markdown_table  # noqa: E402

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results-gpu.md"
SECONDS = 560.0
"""Of all lines together; with what starting and ending takes, below ten minutes."""
LEAST = 8.0
"""No line is begun in less."""
TAIL = 40
"""Lines of what a failing line printed that are kept."""
WORDS: Mapping[bool | None, str] = {True: "holds", False: "FAILS", None: "measured"}
NOTES = """\
{machine}; torch {torch}, transformers {transformers}, Python {python}, {cores} cores; {date}.
Written by `make gpu-check` (benchmarks/gpu_check.py). holds and FAILS are verdicts by the limit
that the line names; what is only measured has none. Distances are of float32 on the device from one
example at a time in float64 on the CPU, relative to it.
"""


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A line that runs."""

    name: str
    process: BaseProcess
    answers: Connection
    since: float
    limit: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the lines asked for; return 0 where none fails."""
    options = _options(arguments)
    lines = {
        name: replace(line, limit=options.patience * line.limit)
        for name, line in chosen(options.only).items()
    }
    # lines work in folders of their own
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    said: dict[str, tuple[Verdict, float]] = {}
    log = options.to.with_suffix(".log")
    log.write_text("", encoding="utf-8")
    begun_at = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        threads = min(torch.get_num_threads(), max(1, (os.cpu_count() or 1) // options.together))
        given = Given(device=options.device, quick=options.quick, folder=scratch, threads=threads)
        known, _ = _alone("machine", MACHINE, given, begun_at + SECONDS, options.start)
        if not known.holds:
            print(f"benchmarks.gpu_check: {known.seen}", file=sys.stderr)
            return 2
        device, words = known.seen.split(" ", 1)
        given = replace(given, device=device)
        print(f"{device}: {words}", flush=True)
        until = begun_at + options.seconds
        together = {name: line for name, line in lines.items() if not line.alone}
        alone = {name: line for name, line in lines.items() if line.alone}
        for group, most in ((together, options.together), (alone, 1)):
            for name, verdict, seconds in run(group, given, most, until, options.start):
                said[name] = verdict, seconds
                print(
                    f"{seconds:6.1f} s  {name}: {WORDS[verdict.holds]}: {verdict.seen}", flush=True
                )
                if verdict.holds is False:
                    with log.open("a", encoding="utf-8") as file:
                        file.write(f"== {name}\n{_tail(given, name)}\n")
                write(options.to, words, {key: said[key] for key in lines if key in said})
    failed = [name for name, (verdict, _) in said.items() if verdict.holds is False]
    print(f"{len(said)} lines in {time.monotonic() - begun_at:.0f} s, failing: {failed or 'none'}")
    return 1 if failed else 0


def run(
    lines: Mapping[str, Line], given: Given, most: int, until: float, start: str
) -> Iterator[tuple[str, Verdict, float]]:
    """Yield each line's name, verdict and seconds, as it ends; ``most`` run at a time."""
    waiting, running = list(lines), list[Begun]()
    while waiting or running:
        while waiting and len(running) < most:
            name = waiting.pop(0)
            left = until - time.monotonic()
            if left < LEAST:
                yield name, Verdict(False, "out of the time of all lines"), 0.0
                continue
            running.append(begin(name, lines[name], given, min(left, lines[name].limit), start))
        now = time.monotonic()
        first = min((each.since + each.limit for each in running), default=now)
        ready = wait([each.answers for each in running], timeout=max(0.0, first - now))
        for each in list(running):
            seconds = time.monotonic() - each.since
            if each.answers not in ready and seconds < each.limit:
                continue
            running.remove(each)
            yield each.name, end(each), seconds


def begin(name: str, line: Line, given: Given, limit: float, start: str) -> Begun:
    """Start a line's process."""
    context = multiprocessing.get_context(start)
    answers, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, line, given, sender))
    process.start()
    sender.close()
    return Begun(name=name, process=process, answers=answers, since=time.monotonic(), limit=limit)


def end(begun: Begun) -> Verdict:
    """End a line's process and all that it started; return what it said, or why it did not."""
    verdict = Verdict(False, f"out of time: more than {begun.limit:.0f} s")
    if begun.answers.poll():
        try:
            verdict = Verdict(**begun.answers.recv())
        except EOFError:
            begun.process.join()
            verdict = Verdict(False, f"ended with code {begun.process.exitcode}, no word said")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(begun.process.pid or 0, signal.SIGKILL)
    begun.process.join()
    return verdict


def _work(name: str, line: Line, given: Given, sender: Connection) -> None:
    """Run a line in this process, which was started for it."""
    os.setsid()
    folder = given.place(name)
    os.chdir(folder)
    sys.stdout = sys.stderr = log = _log(given, name).open("a", buffering=1, encoding="utf-8")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    torch.set_num_threads(given.threads)
    try:
        verdict = line.work(given)
    except BaseException as error:  # a line fails by itself, whatever happens in it
        traceback.print_exc()
        words = f"{type(error).__name__}: {error}".strip()
        verdict = Verdict(False, " ".join(words.split())[:300])
    log.flush()
    sender.send(asdict(verdict))
    sender.close()
    os._exit(0)


def _alone(name: str, line: Line, given: Given, until: float, start: str) -> tuple[Verdict, float]:
    ((_, verdict, seconds),) = run({name: line}, given, 1, until, start)
    return verdict, seconds


def chosen(words: str) -> dict[str, Line]:
    """Return the lines that words separated by commas name, by beginnings of names; "": all.

    Raises:
        SystemExit: A word begins no name.
    """
    if not words:
        return dict(LINES)
    for word in words.split(","):
        if not any(name.startswith(word) for name in LINES):
            raise SystemExit(f"--only must name some of {', '.join(LINES)}, got {word!r}.")
    return {
        name: line
        for name, line in LINES.items()
        if any(name.startswith(word) for word in words.split(","))
    }


def write(page: Path, words: str, said: Mapping[str, tuple[Verdict, float]]) -> None:
    """Write what is known so far: the table, and its numbers as JSON beside it."""
    notes = NOTES.format(
        machine=words,
        torch=version("torch"),
        transformers=version("transformers"),
        python=platform.python_version(),
        cores=os.cpu_count(),
        date=datetime.date.today(),
    )
    rows = [
        (name, WORDS[verdict.holds], LINES[name].says, verdict.seen, f"{seconds:.0f}")
        for name, (verdict, seconds) in said.items()
    ]
    table = markdown_table(("line", "verdict", "of what", "seen", "s"), rows)
    page.write_text(f"# On an accelerator\n\n{notes}\n{table}", encoding="utf-8")
    lines = [
        json.dumps({"line": name, "seconds": seconds, **asdict(verdict)})
        for name, (verdict, seconds) in said.items()
    ]
    page.with_suffix(".jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _log(given: Given, name: str) -> Path:
    return Path(given.folder) / f"{name}.log"


def _tail(given: Given, name: str) -> str:
    path = _log(given, name)
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-TAIL:])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, or a kind of accelerator")
    parser.add_argument("--quick", action="store_true", help="small shapes, few repetitions")
    parser.add_argument("--only", default="", help="beginnings of lines' names, with commas")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all lines together")
    parser.add_argument("--to", type=Path, default=RESULTS, help="the page that is written")
    parser.add_argument(
        "--together",
        type=int,
        default=max(1, (os.cpu_count() or 1) // 4),
        help="untimed lines at a time",
    )
    parser.add_argument("--patience", type=float, default=1.0, help="factor of the lines' limits")
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    return parser.parse_args(arguments)


MACHINE = Line(work=machine, limit=90.0, says="what computes")
LINES: Mapping[str, Line] = {**EXACTNESS, **RUNS, **SPEED}

if __name__ == "__main__":
    sys.exit(main())
