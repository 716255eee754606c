"""The page gate: our attention kernel for heads of 256 elements, on the page size that the model asks for."""
