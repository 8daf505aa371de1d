"""What a user's ``model.py`` sees: ``triton_python_backend_utils``, and the loop that drives its class."""
