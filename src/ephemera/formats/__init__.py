"""Files of other stores, read and written: see `transfer`, which moves them into a store and out of it."""
