"""Random numbers that do not depend on the layout: initial weights and dropout (docs/design/runtime.md, "Randomness")."""
