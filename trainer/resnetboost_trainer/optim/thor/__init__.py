"""Algorithm THOR: block-diagonal K-FAC whose factors are updated per layer when their traces change."""
