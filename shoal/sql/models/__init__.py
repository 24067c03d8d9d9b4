"""Models of statements: features of columns, and the parts of a module that is made of them."""
