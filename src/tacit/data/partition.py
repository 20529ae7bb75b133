"""Ways to spread one data set over sites, to study how uneven sites affect a method.

Each function returns one array of record indices per site. Every record is at exactly one site, except for the leftover
records of `rho_kappa`. Indices rise within a site, so that records keep their order. These functions read the targets
of all records: they are for studies with public data, not for a real federation.

A seed fixes a split. Orders come from numpy's raw 64-bit words, which are the same in all versions.
"""

from collections.abc import Mapping
from fractions import Fraction
from math import floor, isfinite
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np

# Sharma et al. (2019), table 1: Adult over 10 sites. A is even; in B the small sites have nearly no large incomes, in C
# nearly nothing else, in D more than half.
SHARMA: Mapping[str, dict[str, float]] = MappingProxyType(
    {
        "A": {"rho": 0.0, "kappa": 0.0},
        "B": {"rho": 0.9, "kappa": 0.95},
        "C": {"rho": 0.7, "kappa": -3.0},
        "D": {"rho": 0.6, "kappa": -1.5},
    }
)
_MOST_DRAWS = 1000  # of shares, before `least` counts as unreachable


def equal(count: int, sites: int, seed: int) -> list[np.ndarray]:
    """Spread `count` records at random over sites of the same size.

    N_m = ⌊N / M⌋ + 1 for the first N mod M sites, and ⌊N / M⌋ for the others.

    >>> [len(site) for site in equal(11, 3, seed=0)]
    [4, 4, 3]
    """
    count = _whole("count", count, 1)
    sites = _whole("sites", sites, 1)
    if sites > count:
        raise ValueError(f"sites={sites} cannot share count={count} records: take at most {count} sites.")
    order = _order(count, np.random.PCG64(_whole("seed", seed, 0)))
    return [np.sort(site) for site in np.array_split(order, sites)]


def rho_kappa(target: Any, sites: int, rho: float, kappa: float, seed: int) -> list[np.ndarray]:
    """Spread two classes over small sites (the first half) and large ones, as Sharma et al. (2019), appendix C.

    N_small = ⌊N/M · (1 − ρ)⌋,  N_large = ⌊N/M · (1 + ρ)⌋,  λ_small = λ + (1 − λ) · κ

    λ is the majority class's share in the data, λ_small its share at each small site. ρ is in [0, 1): 0 gives sites of
    the same size. κ is in [−λ / (1 − λ), 1]: 0 keeps the share, 1 leaves no minority at the small sites, and a negative
    one gives them more of it than the data have. `SHARMA` has the paper's four settings for Adult over 10 sites.

    Points that the paper leaves open follow its code (github.com/MrinankSharma/DP-PVI):

    | open in the paper              | here                                                                          |
    |--------------------------------|-------------------------------------------------------------------------------|
    | records that floors leave over | at no site: fewer than M of them, chosen at random                            |
    | λ_small · N_small              | rounded down, so that the minority gets the rest                              |
    | classes at large sites         | what the small sites leave, dealt at random: equal shares up to chance        |

    Two things differ from that code. Records are first shuffled within a class; the code takes them in the file's
    order. Floors are exact, with ρ and κ read as printed decimals: 10 · (1 − 0.9) is 1, not 0 as with floats.
    If both classes have the same size, the lesser value counts as the majority. The paper's sizes are those of 39,074
    training records, one more than `adult` has: in B a large site has 7,424 there and 7,423 here.

    >>> target = np.repeat([0, 1], [76, 24])
    >>> [(len(site), int(target[site].sum())) for site in rho_kappa(target, 2, rho=0.5, kappa=-2, seed=0)]
    [(25, 18), (75, 6)]

    Sharma, M., Hutchinson, M., Swaroop, S., Honkela, A. & Turner, R. (2019). Differentially private federated
    variational inference. arXiv:1911.10563.
    """
    codes, counts = _classes(target)
    sites = _whole("sites", sites, 2)
    bits = np.random.PCG64(_whole("seed", seed, 0))
    if sites % 2:
        raise ValueError(f"sites={sites} cannot be half small and half large: take an even number.")
    if len(counts) != 2:
        raise ValueError(f"target has {len(counts)} classes where two are expected: use `dirichlet` for other numbers.")
    if not 0 <= rho < 1:
        raise ValueError(f"rho={rho} is not in [0, 1): take 0 for sites of the same size, more for smaller small ones.")
    major = int(np.argmax(counts))
    majority, share = int(counts[major]), Fraction(int(counts[major]), len(codes))
    if not -majority <= kappa * (len(codes) - majority) <= len(codes) - majority:  # also refuses NaN
        lowest = -majority / (len(codes) - majority)
        raise ValueError(f"kappa={kappa} asks for a share outside [0, 1]: take one from {lowest:.4g} to 1.")

    size, tilt = Fraction(len(codes), sites), Fraction(repr(float(rho)))
    small, large = floor(size * (1 - tilt)), floor(size * (1 + tilt))
    if small == 0:
        raise ValueError(f"rho={rho} leaves small sites without a record of {len(codes)}: lower `rho` or `sites`.")
    # The lowest kappa may print as a decimal just below it.
    of_major = max(0, floor(small * (share + (1 - share) * Fraction(repr(float(kappa))))))
    of_minor = small - of_major
    half = sites // 2
    if of_minor * half > len(codes) - majority:  # the majority suffices always: small sites have half of all at most
        raise ValueError(
            f"rho={rho} and kappa={kappa} put {of_minor} records of the minority class at each of {half} small sites "
            f"where the data have {len(codes) - majority} in all: raise `rho` or `kappa`, or lower `sites`."
        )

    order = _order(len(codes), bits)
    is_major = codes[order] == major
    majors, minors = order[is_major], order[~is_major]
    rest = np.concatenate([majors[of_major * half :], minors[of_minor * half :]])
    rest = rest[_order(len(rest), bits)]  # anew: what the small sites took left gaps at the front of the first order
    return [
        *(
            np.sort(
                np.concatenate([majors[m * of_major : (m + 1) * of_major], minors[m * of_minor : (m + 1) * of_minor]])
            )
            for m in range(half)
        ),
        *(np.sort(rest[m * large : (m + 1) * large]) for m in range(half)),
    ]


def dirichlet(target: Any, sites: int, concentration: float, seed: int, *, least: int = 1) -> list[np.ndarray]:
    """Spread each class over sites in its own random shares, which skews labels and sizes.

    p_c ~ Dirichlet(α, …, α) over the M sites, for each class c. Site m gets the records of class c from place
    N_c · (p_c1 + … + p_c,m−1) to N_c · (p_c1 + … + p_cm) of a random order, both rounded.

    A large α (`concentration`) gives equal sites; a small one gives most of a class to few sites. Shares are drawn
    again until every site has at least `least` records, which makes splits with a small α less uneven than the formula
    alone; `least=0` allows empty sites. The drawn shares, unlike the order, may change with numpy's version.

    >>> target = np.repeat([0, 1], [76, 24])
    >>> [(len(site), int(target[site].sum())) for site in dirichlet(target, 2, concentration=1e6, seed=0)]
    [(50, 12), (50, 12)]

    Hsu, T.-M. H., Qi, H. & Brown, M. (2019). Measuring the effects of non-identical data distribution for federated
    visual classification. arXiv:1909.06335 (shares of classes at a site). Li, Q., Diao, Y., Chen, Q. & He, B. (2022).
    Federated learning on non-IID data silos. ICDE (shares of sites in a class, as here).
    """
    codes, counts = _classes(target)
    sites, least = _whole("sites", sites, 1), _whole("least", least, 0)
    bits = np.random.PCG64(_whole("seed", seed, 0))
    if not (concentration > 0 and isfinite(concentration * sites)):  # numpy adds them up
        raise ValueError(
            f"concentration={concentration} is not a positive, finite number: take 1e6, say, for equal sites."
        )
    if sites * least > len(codes):
        raise ValueError(f"sites={sites} cannot have least={least} of {len(codes)} records each: lower one of the two.")
    order = _order(len(codes), bits)
    generator = np.random.Generator(bits)
    for _ in range(_MOST_DRAWS):
        shares = generator.dirichlet(np.full(sites, float(concentration)), size=len(counts))
        cuts = np.rint(counts[:, None] * np.minimum(np.cumsum(shares, axis=1), 1)).astype(int)
        cuts[:, -1] = counts  # sums of shares miss 1 by rounding
        if np.diff(cuts, axis=1, prepend=0).sum(axis=0).min() >= least:
            break
    else:
        raise ValueError(
            f"concentration={concentration} left a site with fewer than least={least} records in each of {_MOST_DRAWS} "
            "draws: raise `concentration`, or lower `sites` or `least`."
        )
    pieces = [np.split(order[codes[order] == c], cuts[c, :-1]) for c in range(len(counts))]
    return [np.sort(np.concatenate(site)) for site in zip(*pieces, strict=True)]


def by_group(groups: Any) -> tuple[list[np.ndarray], tuple[Any, ...]]:
    """One site for each group, such as a hospital, and the names of the groups in the same, sorted order.

    Site m = {i : groups_i = name_m}.

    >>> sites, names = by_group(["va", "cleveland", "va"])
    >>> names, [site.tolist() for site in sites]
    (('cleveland', 'va'), [[1], [0, 2]])
    """
    codes, names = _coded("groups", groups)
    return [np.flatnonzero(codes == m) for m in range(len(names))], tuple(names.tolist())


def _order(count: int, bits: np.random.PCG64) -> np.ndarray:
    return np.argsort(bits.random_raw(count), kind="stable")


def _whole(name: str, number: Any, lowest: int) -> int:
    if isinstance(number, bool) or not isinstance(number, Integral) or number < lowest:
        raise ValueError(f"{name}={number!r} is not a whole number of at least {lowest}: give one.")
    return int(number)


def _coded(name: str, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Each record's index into the sorted distinct labels, and these labels."""
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} has shape {array.shape} where (n,) is expected: give one label for each record.")
    try:
        values, codes = np.unique(array, return_inverse=True)
    except TypeError:
        raise ValueError(f"{name} mixes labels that have no order: give all as text or all as numbers.") from None
    if any(value != value for value in values.tolist()):
        raise ValueError(f"{name} has NaN for a label: leave such records out, or give them a label of their own.")
    return codes, values


def _classes(target: Any) -> tuple[np.ndarray, np.ndarray]:
    codes, values = _coded("target", target)
    return codes, np.bincount(codes, minlength=len(values))
