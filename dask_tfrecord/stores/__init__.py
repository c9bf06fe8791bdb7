"""Where columns go to: Zarr stores."""
