"""Factors of columns from what a model's matrices are multiplied with: `quire quantize
--calibrate`."""

from quire.planning.calibration.calibrate import calibrated, factors_of, rounded_folds
from quire.planning.calibration.measure import mean_squares

__all__ = ["calibrated", "factors_of", "mean_squares", "rounded_folds"]
