"""What the guard says of honest and crafted models, what it costs, and what closing a leak costs."""
