"""One server after another: state directory, adoption, upgrade, a lost keeper."""
