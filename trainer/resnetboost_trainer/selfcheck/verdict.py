"""Compares what a device computed with the same steps on the CPU, as findings. Pure."""

import math
from collections.abc import Iterator, Sequence

from resnetboost_api import findings
from resnetboost_api.findings import Finding
from resnetboost_trainer.selfcheck import cases
from resnetboost_trainer.selfcheck.cases import Numbers, Results
from resnetboost_trainer.selfcheck.gang import Ended

# Relative differences that are rounding. Two ways to compute on CPUs differ by 1e-7 after three steps, by 1e-3 where a
# rectifier near zero chooses another side; devices may multiply with 10 bits. A wrong gradient is off by 0.1.
TOLERANCE = {"CPU": 0.003, "GPU": 0.03, "Ascend": 0.03}
REPORT = "attach the file of this report to a bug report"


def judge(found: Ended, reference: Ended | None) -> Iterator[Finding]:
    """Findings about a device's gang, by the same gang on the CPU; on a CPU about our C++ operators.

    A gang that never began has no reference.
    """
    results = found.results
    if results is None:
        yield findings.problem("self-check", f"no rank began: {found.trouble or _last(found)}", REPORT)
        return
    yield from _reduction(results)
    known = reference.results.algorithms if reference is not None and reference.results is not None else {}
    for algorithm in cases.ALGORITHMS:
        yield _algorithm(algorithm, results, known.get(algorithm), found.trouble)
    if reference is not None and reference.trouble:
        message = f"the reference on the CPU is not complete: {reference.trouble}"
        yield findings.warning("self-check", message, "run it again when the machine is idle, or raise --seconds")


def _reduction(results: Results) -> Iterator[Finding]:
    expected = cases.expected_sum(results.ranks)
    if results.ranks == 1:
        yield findings.ok("all-reduce", "one rank: nothing to reduce")
    elif results.reduced is None:
        message = f"{results.ranks} ranks on {results.device} did not finish an all-reduce"
        yield findings.problem("all-reduce", message, f"look at links and drivers; {REPORT}")
    elif results.reduced != expected:
        message = f"an all-reduce of {results.ranks} ranks gave {results.reduced:g} instead of {expected:g}"
        yield findings.problem("all-reduce", message, REPORT)
    else:
        rate = f"{results.megabytes_per_second:.0f} MB/s" if results.megabytes_per_second else "no rate"
        yield findings.ok("all-reduce", f"{results.ranks} ranks on {results.device}: exact, {rate}")


def _algorithm(name: str, results: Results, known: Numbers | None, trouble: str) -> Finding:
    numbers = results.algorithms.get(name)
    if numbers is None:
        reason = results.failed.get(name) or trouble or "it was not computed"
        return findings.problem(name, f"{cases.STEPS} steps on {results.device} failed: {reason}", REPORT)
    if known is None:
        losses = ", ".join(f"{loss:.4g}" for loss in numbers.losses)
        message = f"losses {losses} on {results.device}, and no reference to compare with"
        return findings.warning(name, message, REPORT)
    off = difference(numbers, known)
    took = f"{cases.STEPS} steps on {results.device} in {numbers.seconds:.1f} s"
    if not off <= TOLERANCE[results.device]:
        return findings.problem(name, f"{took} differ from the CPU's numbers by {off:.2g}", REPORT)
    return findings.ok(name, f"{took}, within {off:.1g} of the reference")


def difference(numbers: Numbers, known: Numbers) -> float:
    """The largest relative difference of the losses, the gradients' norms and the weights' way; NaN counts as one."""
    pairs = [
        *_paired(numbers.losses, known.losses),
        *_paired(numbers.gradient_norms, known.gradient_norms),
        (numbers.moved, known.moved),
    ]
    return max((abs(one - other) / abs(other) if math.isfinite(one) else math.inf) for one, other in pairs)


def _paired(one: Sequence[float], other: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(one, other, strict=True))


def _last(ended: Ended) -> str:
    """The last line of the first log that has one."""
    texts = (line for log in ended.logs.values() for line in reversed(log.splitlines()) if line.strip())
    return next(texts, "nothing is in the logs")
