"""Constructions of the literature: sharpened twins, volumes, slopes, and bounds on boxes."""

from spiritlevel.witnesses import slopes, volume
from spiritlevel.witnesses.sharpened import sharpen, sharpen_many, zero_in_ball

__all__ = ["sharpen", "sharpen_many", "slopes", "volume", "zero_in_ball"]
