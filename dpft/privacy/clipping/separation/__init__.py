"""How examples' gradients are told apart where no layer rule does it, and how that is proved."""
