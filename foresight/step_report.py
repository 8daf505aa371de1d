"""What `trireme profile` prints of the steps of a generating model."""

from __future__ import annotations

from collections.abc import Iterator

from ..engine.profiles.generation import GenerationProfile


def step_lines(profile: GenerationProfile) -> Iterator[str]:
    """A line for each point, and how well the fit holds; not ended."""
    yield f"{'prompt':>8}{'texts':>7}{'after':>8}{'steps':>7}{'mean':>12}{'p50':>12}{'p99':>12}{'fitted':>12}"
    for point in profile.points:
        load, time = point.load, point.time
        before = load.context / load.texts if load.texts else load.pairs / load.prompt if load.prompt else 0.0
        times = time.mean_s, time.quantile(0.5), time.quantile(0.99), profile.fit.seconds(load)
        cells = "".join(f"{each * 1e3:>10.3f}ms" for each in times)
        yield f"{load.prompt:>8.0f}{load.texts:>7.0f}{before:>8.0f}{time.count:>7}{cells}"
    errors = sorted(abs(each) for each in profile.errors())
    middle, most = errors[len(errors) // 2], errors[-1]
    ratios = profile.ratios
    yield (
        f"the fit is off by {middle:.1%} in the middle and {most:.1%} at most; of {ratios.count} steps p5 took "
        f"{ratios.quantile(0.05):.2f}, p50 {ratios.quantile(0.5):.2f} and p99 {ratios.quantile(0.99):.2f} times as long"
    )
    for each in profile.rested:
        more = ", ".join(f"{more_s * 1e3:.1f} ms" for more_s in each.more_s)
        yield f"after {each.rest_s * 1e3:.0f} ms without a step the first ones take {more} longer"
    yield f"a token in memory takes {profile.token_bytes} bytes; a text has {profile.context} tokens at most"
