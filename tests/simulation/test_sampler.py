"""The simulated sampler against times worked out by hand, in virtual time."""

from __future__ import annotations

import asyncio
import math
import statistics
from typing import Any

import pytest

from postrl.rollout.sampler import Request, Sampling
from postrl.simulation import clock
from postrl.simulation.assumptions import Lengths, Speed
from postrl.simulation.sampler import SimulatedSampler
from postrl.types import Sampled, VersionSpan

ONE_A_SECOND = Speed(1.0)


def request(length: int, *, prompt: int = 1, tokens: int = 1, most: int = 1000) -> Request:
    """A completion of `length` tokens (its seed), for a prompt of `tokens` times the token `prompt`."""
    return Request([prompt] * tokens, length, Sampling(1.0, most))


def sampler(speed: Speed = ONE_A_SECOND, **options: Any) -> SimulatedSampler:
    return SimulatedSampler(speed, lambda request: request.seed, **options)


class Run:
    """Samples requests and keeps when each came."""

    def __init__(self, made: SimulatedSampler) -> None:
        self.sampler = made
        self.at: dict[int, float] = {}
        self.came: dict[int, Sampled] = {}

    async def sample(self, *requests: Request) -> None:
        async def one(index: int, request: Request) -> None:
            self.came[index] = await self.sampler.sample(request)
            self.at[index] = asyncio.get_running_loop().time()

        await asyncio.gather(*(one(index, request) for index, request in enumerate(requests)))


def times(*requests: Request, **options: Any) -> list[float]:
    async def main() -> Run:
        run = Run(sampler(**options))
        await run.sample(*requests)
        return run

    run = clock.run(main())
    return [run.at[i] for i in range(len(requests))]


# -- one server --------------------------------------------------------------------------------------------------------


def test_a_decode_step_takes_longer_the_more_sequences_it_has():
    # steps of 1 + 2 s: four tokens for both after 12 s; then six of 1 + 1 s for the longer one
    assert times(request(10), request(4), speed=Speed(1.0, 1.0)) == pytest.approx([24.0, 12.0])


def test_sequences_beyond_the_slots_wait_for_one():
    assert times(request(10), request(4), request(3), slots=2) == pytest.approx([10.0, 4.0, 7.0])


def test_a_prompt_is_computed_before_its_first_token_and_the_others_wait():
    late = request(5, prompt=2, tokens=30)
    delayed = {"delay": lambda r: 4.0 if r is late else 0.0}
    # 10 x 0.1 s of prompt, then tokens until 4 s (3 of them), 3 s of the second prompt, then both go on
    assert times(request(9, tokens=10), late, speed=Speed(1.0, prefill=0.1), **delayed) == pytest.approx([13.0, 12.0])


def test_the_completions_of_a_group_compute_their_prompt_once():
    assert times(*[request(5, tokens=20)] * 4, speed=Speed(1.0, prefill=0.1)) == pytest.approx([7.0] * 4)


def test_speeds_of_a_lone_sequence_and_of_all_slots_give_the_curve():
    speed = Speed.of(lone=100.0, full=5000.0, slots=256, prefill=20000.0)
    assert 1 / speed.step(1) == pytest.approx(100.0)
    assert 256 / speed.step(256) == pytest.approx(5000.0)
    assert speed.prefill == 1 / 20000
    assert Speed.of(10.0, 10.0, 1) == Speed(0.1)
    for full in (99.0, 25601.0):
        with pytest.raises(ValueError, match="tokens/s of 256"):
            Speed.of(100.0, full, 256)


def test_a_completion_that_is_cancelled_gives_its_slot_away():
    async def main() -> tuple[float, int]:
        made = sampler(slots=1)
        run = Run(made)
        long = asyncio.create_task(run.sample(request(100)))
        await asyncio.sleep(1)
        short = asyncio.create_task(run.sample(request(5)))
        await asyncio.sleep(2)
        long.cancel()
        await short
        return asyncio.get_running_loop().time(), made.servers[0].load

    assert clock.run(main()) == (pytest.approx(8.0), 0)


def test_a_completion_that_is_cancelled_while_it_waits_never_takes_one():
    async def main() -> float:
        made = sampler(slots=1)
        first = asyncio.create_task(Run(made).sample(request(10)))
        await asyncio.sleep(1)
        waiting = asyncio.create_task(Run(made).sample(request(100)))
        await asyncio.sleep(1)
        waiting.cancel()
        await first
        await Run(made).sample(request(5))
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(15.0)


def test_seconds_of_computing_are_counted_by_server_and_by_sequence():
    async def main() -> tuple[float, float]:
        made = sampler()
        await Run(made).sample(request(7), request(2))
        await asyncio.sleep(5)
        await Run(made).sample(request(3))
        return made.spent()

    assert clock.run(main()) == pytest.approx((10.0, 12.0))


# -- several servers, trouble ------------------------------------------------------------------------------------------


def test_the_server_with_the_least_is_asked():
    # two servers of one slot: the third and fourth go behind the shorter queue at that time, one each
    assert times(request(10), request(4), request(3), request(3), servers=2, slots=1) == pytest.approx([10, 4, 13, 7])


def test_a_try_that_fails_is_made_again_and_after_three_it_is_given_up():
    async def main() -> tuple[Run, int]:
        run = Run(sampler(failures=lambda r: {5: 1, 6: 3}.get(r.seed, 0)))
        await run.sample(request(4), request(5), request(6))
        return run, run.sampler.reissued

    run, reissued = clock.run(main())
    assert [run.at[i] for i in range(3)] == pytest.approx([4.0, 10.0, 18.0])
    assert [run.came[i].finish_reason for i in range(3)] == ["stop", "stop", "abort"]
    assert run.came[2].completion_ids == []
    assert reissued == 4


def test_a_completion_that_does_not_end_is_cut_at_the_limit():
    async def main() -> Run:
        run = Run(SimulatedSampler(ONE_A_SECOND, lambda request: math.inf))
        await run.sample(request(1, most=8))
        return run

    sampled = clock.run(main()).came[0]
    assert (len(sampled.completion_ids), sampled.finish_reason) == (8, "length")


# -- new weights -------------------------------------------------------------------------------------------------------


def pushed(in_flight: str, *, adapters: bool = False) -> tuple[float, float, list[VersionSpan], list[VersionSpan]]:
    """A completion of 10 tokens (prompt: 20, 0.1 s each) is under way when, at 6 s, with 4 tokens written, a push of 3 s
    begins; another of 2 tokens is asked at 7 s. When each ends, and with which versions."""

    async def main() -> Any:
        made = sampler(Speed(1.0, prefill=0.1), adapters=adapters)
        first, second = Run(made), Run(made)
        tasks = [asyncio.create_task(first.sample(request(10, tokens=20)))]
        await asyncio.sleep(6)

        async def push() -> None:
            await made.push(1, 3.0, in_flight)
            made.release(1)

        tasks.append(asyncio.create_task(push()))
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(second.sample(request(2, prompt=7, tokens=10))))
        await asyncio.gather(*tasks)
        return first.at[0], second.at[0], first.came[0].version_spans, second.came[0].version_spans

    return clock.run(main())


BOTH = [VersionSpan(0, 0, 4), VersionSpan(1, 4, 10)]
NEW = [VersionSpan(1, 0, 2)]


def test_keep_computes_keys_and_values_anew():
    # 9 s, then (20 + 4) tokens of the first and 10 of the second: 3.4 s, then 2 and 6 tokens
    assert pushed("keep") == (pytest.approx(18.4), pytest.approx(14.4), BOTH, NEW)


def test_keep_kv_costs_the_pause_alone():
    # 9 s, then 10 tokens of the second prompt
    assert pushed("keep_kv") == (pytest.approx(16.0), pytest.approx(12.0), BOTH, NEW)


def test_wait_lets_what_runs_end_first():
    # the first ends at 12 s, the push at 15 s, and only then the second begins
    assert pushed("wait") == (pytest.approx(12.0), pytest.approx(18.0), [VersionSpan(0, 0, 10)], NEW)


def test_abort_sends_again_what_was_written():
    # after the push at 9 s: as keep, but both are sent anew
    assert pushed("abort") == (pytest.approx(18.4), pytest.approx(14.4), BOTH, NEW)


def test_an_adapter_interrupts_nothing_and_a_completion_keeps_its_version():
    # the second joins at 7 s under the old adapter, whose 10 prompt tokens hold both up for 1 s
    assert pushed("keep", adapters=True) == (
        pytest.approx(13.0), pytest.approx(10.0), [VersionSpan(0, 0, 10)], [VersionSpan(0, 0, 2)],
    )  # fmt: skip


def test_prompts_are_computed_anew_after_a_push():
    async def main() -> float:
        made = sampler(Speed(1.0, prefill=0.1))
        await Run(made).sample(request(5, tokens=20))
        await made.push(1, 0.0)
        await Run(made).sample(request(5, tokens=20))
        await Run(made).sample(request(5, tokens=20))
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(5 * 3 + 2 * 2)


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_lengths_follow_their_distribution():
    drawn = [Lengths(mean=300.0, sigma=0.5).draw(seed) for seed in range(4000)]
    assert statistics.fmean(drawn) == pytest.approx(300.0, rel=0.05)
    assert statistics.stdev(map(math.log, drawn)) == pytest.approx(0.5, rel=0.05)
    between = [Lengths(quantiles=(10.0, 20.0, 100.0)).draw(seed) for seed in range(4000)]
    assert min(between) >= 10 and max(between) <= 100
    assert statistics.median(between) == pytest.approx(20.0, rel=0.1)
    endless = [Lengths(mean=5.0, endless=0.25).draw(seed) for seed in range(4000)]
    assert sum(map(math.isinf, endless)) / 4000 == pytest.approx(0.25, abs=0.03)
    assert {length for length in endless if math.isfinite(length)} == {5.0}


def test_a_seed_has_one_length():
    lengths = Lengths(mean=300.0, sigma=0.5)
    assert lengths.draw(7) == lengths.draw(7) != lengths.draw(8)
