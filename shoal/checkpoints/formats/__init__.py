"""Files of checkpoints and exports, and what their manifests say."""
