"""Handwritten digits, 8x8 pixels, of scikit-learn."""
