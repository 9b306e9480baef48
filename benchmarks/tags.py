"""What tags cost: tagging and verifying 1,000 results of 1,500 characters, against HMAC-SHA-256 over the same bytes.

    python -m benchmarks.tags

Ratios of the same run, since times depend on the machine; the aim is at most 4 each.
"""

from __future__ import annotations

import hashlib
import hmac
import statistics
import time
from collections.abc import Callable

from proxy.evidence import tagged
from proxy.evidence.tagged import Proof
from proxy.heap import keep_large_buffers
from proxy.tagging import Keys, Result, tag
from proxy.wire.messages import Text

RESULTS, CHARACTERS, RUNS, AT_MOST = 1000, 1500, 41, 4.0
KEY = "a benchmark's key of 32 letters."


def _seconds(work: Callable[[], object]) -> float:
    """Processor time, so that what else runs on the machine does not count."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def main() -> int:
    """Print the ratios; 1 where one is over the aim."""
    keep_large_buffers()  # as `serve` does
    keys, proof = Keys([KEY]), Proof(Keys([KEY]))
    sentence = "The pump runs at three bar, and its safety valve opens at five. "
    contents = {
        "ASCII": (sentence * 30)[: CHARACTERS - 1] + ".",
        "Latin-1": (sentence.replace("pump", "pümp") * 30)[: CHARACTERS - 1] + ".",
        "any script": (sentence.replace("pump", "ポンプ") * 30)[: CHARACTERS - 1] + ".",
    }
    worst = 0.0
    print(f"{RESULTS} results of {CHARACTERS} characters, ratio to HMAC-SHA-256 over the same bytes (median of {RUNS})")
    for about, content in contents.items():
        for shape, returns in (("one return", 1), ("100 returns of 10", 100)):
            each = RESULTS // returns
            given = [
                [Result(f"c{n}-{i}", content, title="Pump manual", uri="https://kb.example/pump") for i in range(each)]
                for n in range(returns)
            ]
            texts = [tag(results, keys).text for results in given]
            signed = [text.encode() for text in texts]
            parts = [(Text(text),) for text in texts]
            work: dict[str, Callable[[], object]] = {
                "hmac": lambda signed=signed: [hmac.digest(KEY.encode(), raw, hashlib.sha256) for raw in signed],  # type: ignore[misc]
                "tag": lambda given=given: [tag(results, keys) for results in given],  # type: ignore[misc]
                "verify": lambda parts=parts: [tagged.is_ours(proof, one) for one in parts],  # type: ignore[misc]
                "verify and cut into chunks": lambda parts=parts: [tagged.read(proof, one) for one in parts],  # type: ignore[misc]
            }
            runs = [{name: _seconds(done) for name, done in work.items()} for _ in range(RUNS)]
            ratios = {
                name: statistics.median(run[name] / run["hmac"] for run in runs) for name in work if name != "hmac"
            }
            if about == "ASCII":  # the others also pay for their encoding, which HMAC over bytes does not
                worst = max(worst, ratios["tag"], ratios["verify"])
            base = statistics.median(run["hmac"] for run in runs) * 1000
            shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
            print(f"  {about}, {shape}: HMAC {base:.2f} ms; {shown}")
    print(f"worst of ASCII {worst:.2f}, aim at most {AT_MOST:.0f}")
    return int(worst > AT_MOST)


if __name__ == "__main__":
    raise SystemExit(main())
