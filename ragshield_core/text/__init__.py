"""Properties of texts that detectors use, one idea a module; no module imports a detector."""
