"""One scenario, simulated and then run live with eight emulated engines behind the gateway. Do the two agree?

Both runs use four policies with their default parameters. The live run is slowed down, so that a step takes 25 ms of
wall time. Its figures vary from run to run.
"""

from headway.twin.check import HITS, LIMITS, twin

found = twin("examples/20_twin.yaml", step_ms=25)
for name, limit in LIMITS.items():
    off = [pair.policy for pair in found.pairs if abs(pair.errors[name]) > limit]
    unit = "points" if name == HITS else "%"
    print(f"{name} within {100 * limit:g} {unit}: {', '.join(off) + ' is not' if off else 'under all four policies'}")
print(f"best to worst, simulated: {', '.join(found.order('simulated'))}")
print(f"best to worst, live:      {', '.join(found.order('live'))}")
