"""What was published: Table 1 of Teye, Azizpour and Smith 2018, and Gal's estimates of MC dropout on the same sets."""

from __future__ import annotations

from experiments.uci.record import Published

SOURCE = "Teye, Azizpour and Smith 2018, Bayesian uncertainty estimation for batch normalized deep networks, Table 1"
GAL_SOURCE = "yaringal/DropoutUncertaintyExps (other splits, T = 10 000): RMSE of the paper, and of its rerun"

# Normalised CRPS and PLL in percent with the stars of the paper: of MCBN, MCDO and MNF (multiplicative normalizing
# flows, which is not reproduced here).
_TABLE = """
boston    8.50 ****    3.06 ****   5.88 ****    10.49 ****   5.51 ****   1.76 ns
concrete  3.91 ****    0.93 *      3.13 ***    -36.36 **    10.92 ****  -2.16 ns
energy    5.75 ****    1.37 ns     1.10 ns      10.89 ****  -14.28 *   -33.88 ns
kin8nm    2.85 ****    1.82 ****   0.53 ns       1.68 ***   -0.26 ns     0.42 ns
power     0.24 ***    -0.44 ****  -0.89 ****     0.33 **     3.52 ****  -0.87 ****
protein   2.66 ****    0.99 ****   0.57 ****     2.56 ****   6.23 ****   0.52 ****
wine      0.26 **      2.00 ****   0.94 ****     0.19 *      2.91 ****   0.83 ****
yacht   -56.39 ***    21.42 ****  24.92 ****    45.58 ****  -41.54 ns   46.19 ****
"""


def _read(table: str) -> dict[tuple[str, str, str], Published]:
    published = {}
    for line in table.strip().splitlines():
        name, *fields = line.split()
        cells = [Published(float(value), stars) for value, stars in zip(fields[::2], fields[1::2], strict=True)]
        places = [(method, metric) for metric in ("crps", "pll") for method in ("mcbn", "mcdo", "mnf")]
        published |= {(name, *place): cell for place, cell in zip(places, cells, strict=True)}
    return published


TABLE_1 = _read(_TABLE)  # by set, method ("mcbn", "mcdo", "mnf") and metric ("crps", "pll")

# Root mean square error of MC dropout in target units: as in Gal and Ghahramani 2016, and rerun with the released code.
GAL_RMSE = {
    "boston": (2.83, 2.90),
    "concrete": (4.93, 4.82),
    "energy": (1.08, 0.54),
    "kin8nm": (0.09, 0.08),
    "power": (4.00, 4.01),
    "protein": (4.27, 4.27),
    "wine": (0.61, 0.62),
    "yacht": (0.70, 0.67),
}
