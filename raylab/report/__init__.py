"""What people look at: tables, curves and the published figures beside ours."""
