"""Private vocabularies: word counts with noise, and tokenizers made from them."""
