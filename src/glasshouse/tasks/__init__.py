"""What clients train for: classes, next tokens, many labels, numbers, masks. One file each."""
