"""Tools beside the product: chaos, counting, migration and the dashboard."""
