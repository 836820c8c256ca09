"""What several commands share: options, output, progress, interrupts, failures, cached cards."""
