"""What a step of a native model needs besides its ops: exchanges with other ranks, and K and V."""
