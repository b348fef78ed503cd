"""Polynomial coefficients, highest power first, with their sources and how good they are."""

from __future__ import annotations

LOG2_E = 1.44269504088896341
EXP_REDUCED = (1.38145359e-3, 8.36874545e-3, 4.16683927e-2, 1.66665211e-1, 4.9999994e-1)
"""(exp(r) - 1 - r) / r² on [-ln 2 / 2, ln 2 / 2]: a minimax fit, for an exp within 1 unit in the last place."""
EXP2_CENTRED = (
    1.326472614891827e-3,
    9.671512991189957e-3,
    5.550733581185341e-2,
    2.4022242426872253e-1,
    6.931470036506653e-1,
    1.0,
)
"""2^r on [-1/2, 1/2] within 1e-7: a minimax fit of our own."""
EXP2_FRACTION = (
    1.8671300495043397e-3,
    9.017030708491802e-3,
    5.579991266131401e-2,
    2.4016444385051727e-1,
    6.931512951850891e-1,
    1.0,
)
"""2^r on [0, 1] within 1e-7: a minimax fit of our own."""
TANH_NUMERATOR = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
"""tanh(x) / x as a quotient of polynomials in x², for |x| <= TANH_BOUND: the published rational approximation that
Eigen (`ptanh_float`) and XLA use, within 3e-7."""
TANH_DENOMINATOR = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
TANH_BOUND = 7.90531110763549805
ERF_NUMERATOR = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
    -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
"""erf(x) / x as a quotient of polynomials in x², for |x| <= 4: the published rational approximation that Eigen and XLA
(`ErfImpl32`) use, within 4e-7."""
ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
ERF_BOUND = 4.0
NEAR_ERF = (
    4.48211931e-08, -2.10507215e-06, 4.36656816e-05, -5.33655545e-04, 4.34825241e-03,
    -2.54260200e-02, 1.11578969e-01, -3.75671402e-01, 1.12834623e+00,
)  # fmt: skip
"""erf(x) / x as a polynomial in x², for |x| <= 3, within 3e-5: fitted here by least squares whose weights grow with the
error, so that it is 1 or a little more at the bound."""
NEAR_ERF_BOUND = 3.0
