"""Files of data wherever they are, and indexes of them."""
