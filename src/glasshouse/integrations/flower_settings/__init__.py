"""What a Flower app's configuration declares; needs no Flower."""
