"""What lies in model folders, read before anything is loaded: weights by their headers, configs, adapters. No torch."""
