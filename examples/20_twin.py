"""A scenario simulated, and again with eight emulated engines behind the live gateway: do the two agree?

Four policies as they are by default. Times of the second run are by the wall's clock, slowed down so that a step lasts
25 ms; so the figures themselves vary.
"""

from headway.twin.check import HITS, LIMITS, twin

found = twin("examples/20_twin.yaml", step_ms=25)
for name, limit in LIMITS.items():
    off = [pair.policy for pair in found.pairs if abs(pair.errors[name]) > limit]
    unit = "points" if name == HITS else "%"
    print(f"{name} within {100 * limit:g} {unit}: {', '.join(off) + ' is not' if off else 'under all four policies'}")
print(f"best to worst, simulated: {', '.join(found.order('simulated'))}")
print(f"best to worst, live:      {', '.join(found.order('live'))}")
