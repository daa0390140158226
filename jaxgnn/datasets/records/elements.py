"""Chemical elements: their symbols by atomic number, and their masses."""

from __future__ import annotations

_SYMBOLS = (
    "X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se "
    "Br Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy "
    "Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf "
    "Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og"
)
SYMBOLS = tuple(_SYMBOLS.split())
"""Symbols by atomic number; number 0 is no element."""

NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS) if number}
"""Atomic number of each symbol."""

# Standard atomic weights from hydrogen on, and the mass number of a long-lived isotope of elements
# that have none.
_MASSES = (
    "1.008 4.0026 6.94 9.0122 10.81 12.011 14.007 15.999 18.998 20.180 22.990 24.305 26.982 "
    "28.085 30.974 32.06 35.45 39.948 39.098 40.078 44.956 47.867 50.942 51.996 54.938 55.845 "
    "58.933 58.693 63.546 65.38 69.723 72.630 74.922 78.971 79.904 83.798 85.468 87.62 88.906 "
    "91.224 92.906 95.95 97.9 101.07 102.91 106.42 107.87 112.41 114.82 118.71 121.76 127.60 "
    "126.90 131.29 132.91 137.33 138.91 140.12 140.91 144.24 145 150.36 151.96 157.25 158.93 "
    "162.50 164.93 167.26 168.93 173.05 174.97 178.49 180.95 183.84 186.21 190.23 192.22 195.08 "
    "196.97 200.59 204.38 207.2 208.98 209 210 222 223 226 227 232.04 231.04 238.03 237 244 243 "
    "247 247 251 252 257 258 259 262 267 268 271 270 269 278 281 281 285 286 289 289 293 294 294"
)


def mass_of(symbol: str) -> float:
    """Returns the mass of an element in atomic mass units, to about four digits."""
    return float(_MASSES.split()[NUMBERS[symbol] - 1])
