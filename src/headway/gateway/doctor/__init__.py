"""`headway doctor`: what is wrong with a gateway's file, its engines, or a running gateway."""
