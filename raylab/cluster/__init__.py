"""The only package that imports ray: it places on a cluster what the others compute."""
