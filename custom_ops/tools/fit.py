"""Fits the polynomials of custom_ops/src/cpu/vmath*.h: run it to print every coefficient list, lowest power first.

Each fit is the polynomial p of a degree that makes the largest |w(x) (p(x) - f(x))| on an interval smallest (Remez
exchange in 60 digits). The weight w is what turns an error of p into a relative error of the function it is part of.
Needs mpmath.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp

Real = Callable[[mp.mpf], mp.mpf]


def extremes(error: Real, low: mp.mpf, high: mp.mpf, count: int) -> list[mp.mpf]:
    """`count` points of [low, high] where `error` alternates in sign, the largest of each run of one sign, found on a
    grid that is dense at the ends (as Chebyshev points are)."""
    points = 40 * count
    grid = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * k / points) for k in range(points + 1)]
    best: list[tuple[mp.mpf, mp.mpf]] = []
    for x in grid:
        e = error(x)
        if best and (e > 0) == (best[-1][1] > 0):
            if abs(e) > abs(best[-1][1]):
                best[-1] = (x, e)
        else:
            best.append((x, e))
    while len(best) > count:  # drop the smaller end
        best.pop(0 if abs(best[0][1]) < abs(best[-1][1]) else -1)
    return [x for x, _ in best]


def fit(name: str, f: Real, w: Real, low: float | mp.mpf, high: float | mp.mpf, degree: int) -> list[float]:
    """Coefficients of the best polynomial, lowest power first, printed with its largest weighted error."""
    low, high = mp.mpf(low), mp.mpf(high)
    count = degree + 2
    nodes = [(low + high) / 2 - (high - low) / 2 * mp.cos(mp.pi * (k + mp.mpf(1) / 2) / count) for k in range(count)]
    for _ in range(12):
        system = mp.matrix(count, count)
        for row, x in enumerate(nodes):
            for power in range(degree + 1):
                system[row, power] = x**power
            system[row, degree + 1] = (-1) ** row / w(x)
        solution = mp.lu_solve(system, mp.matrix([f(x) for x in nodes]))
        c = [solution[k] for k in range(degree + 1)]
        level = abs(solution[degree + 1])

        def error(x: mp.mpf, c: list[mp.mpf] = c) -> mp.mpf:
            return w(x) * (mp.polyval(c[::-1], x) - f(x))

        found = extremes(error, low, high, count)
        worst = max(abs(error(x)) for x in found)
        if len(found) < count or worst < level * mp.mpf("1.001"):
            break
        nodes = found
    values = [float(v) for v in c]
    print(f"{name}: degree {degree} on [{mp.nstr(low, 5)}, {mp.nstr(high, 5)}], error 2^{mp.nstr(mp.log(worst, 2), 5)}")
    print("   ", ", ".join(repr(v) for v in values))
    return values


def odd(function: Real) -> Real:
    """(function(x) - x) / x^3 as a function of z = x^2."""
    return lambda z: (function(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3


def odd_weight(function: Real) -> Real:
    """Its weight: relative to the function."""
    return lambda z: mp.sqrt(z) ** 3 / function(mp.sqrt(z))


def log_by_s(z: mp.mpf) -> mp.mpf:
    """(log((1 + s) / (1 - s)) - 2 s) / s^3 with z = s^2."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / s**3


def main() -> None:
    mp.mp.dps = 60
    tiny = mp.mpf(10) ** -12
    ln2 = mp.log(2) / 2 * mp.mpf("1.001")
    quarter = mp.pi / 4 * mp.mpf("1.0001")
    s = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mp.mpf("1.0001")
    tan8 = mp.tan(mp.pi / 8) ** 2 * mp.mpf("1.001")

    def exp_q(r: mp.mpf) -> mp.mpf:
        return (mp.expm1(r) - r) / r**2 if abs(r) > tiny else mp.mpf(1) / 2 + r / 6

    def exp_w(r: mp.mpf) -> mp.mpf:
        return r * r / mp.exp(r) + mp.mpf(10) ** -9

    def log_q(x: mp.mpf) -> mp.mpf:
        return (mp.log1p(x) - x + x * x / 2) / x**3 if abs(x) > tiny else mp.mpf(1) / 3 - x / 4

    def log_w(x: mp.mpf) -> mp.mpf:
        return x**3 / mp.log1p(x) + mp.mpf(10) ** -12 if x != 0 else mp.mpf(10) ** -12

    def erf_q(t: mp.mpf) -> mp.mpf:
        return -mp.log(mp.erfc(t))

    def erf_w(t: mp.mpf) -> mp.mpf:
        return mp.erfc(t) / mp.erf(t)

    def erf_ratio(z: mp.mpf) -> mp.mpf:
        return mp.erf(mp.sqrt(z)) / mp.sqrt(z)

    print("float32 (vmath.h)")
    fit("exp", exp_q, exp_w, -ln2, ln2, 4)
    fit("log", log_q, log_w, -0.25, 0.5, 8)
    fit("erf, small", lambda z: erf_ratio(z) - 1, lambda z: 1 / erf_ratio(z), tiny, mp.mpf("0.88") ** 2, 5)
    fit("erf, large", erf_q, erf_w, "0.87", 4, 7)
    fit("sin", odd(mp.sin), lambda z: z, tiny, quarter**2, 2)
    fit("cos", lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z * z, mp.mpf(10) ** -8, quarter**2, 2)
    print("float32 in double lanes (vmath_wide.h)")
    fit("exp", exp_q, exp_w, -ln2, ln2, 6)
    fit("log", log_by_s, lambda z: z, tiny, s, 4)
    fit("erf, small", erf_ratio, lambda z: 1 / erf_ratio(z), tiny, 1, 8)
    fit("erf, large", erf_q, erf_w, "0.99", 4, 12)
    fit("sin", odd(mp.sin), lambda z: z, tiny, quarter**2, 3)
    fit("cos", lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z * z, mp.mpf(10) ** -8, quarter**2, 3)
    fit("asin", odd(mp.asin), odd_weight(mp.asin), tiny, "0.2501", 7)
    fit("atan", odd(mp.atan), odd_weight(mp.atan), tiny, tan8, 6)
    print("float64 (vmath_f64.h)")
    fit("exp", exp_q, exp_w, -ln2, ln2, 10)
    fit("log", log_by_s, lambda z: z, tiny, s, 6)
    fit("tanh, small", odd(mp.tanh), odd_weight(mp.tanh), tiny, mp.mpf("0.5501") ** 2, 9)


if __name__ == "__main__":
    main()
