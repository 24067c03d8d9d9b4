"""Examples that train: a folder per data set, with its preparation and its models.

The models are user modules, as anyone would write them (README.md). Importing this
package imports none of them.
"""
